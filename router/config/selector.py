"""Reads a Kubernetes label selector, to say where the API server would refuse it.

Source: apimachinery, `pkg/labels/selector.go` (the grammar of `labels.Parse`) and
`pkg/util/validation/validation.go` (names and values).
"""

import re

SPACE = r"[ \t\r\n]*"
WORD = r"[^ \t\r\n=!(),<>]++"
REQUIREMENT = re.compile(
    rf"{SPACE}(?:!{SPACE}(?P<absent>{WORD})|(?P<key>{WORD}){SPACE}"
    rf"(?:(?:==?|!=){SPACE}(?P<value>{WORD})?|[<>]{SPACE}(?P<number>{WORD})"
    rf"|(?:in|notin){SPACE}\((?P<values>[^()]*)\))?){SPACE}"
)
FORMS = "key=value, key!=value, key in (a, b), key notin (a, b), key, !key, key>1 or key<1"
COMMA = re.compile(r",(?![^(]*\))")
"""A comma between requirements; those of a set of values stand before a closing parenthesis."""
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
LABEL = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
PREFIX = re.compile(rf"{LABEL}(?:\.{LABEL})*")
MOST_NAME, MOST_PREFIX = 63, 253
NAME_RULE = (
    f"of at most {MOST_NAME} letters, digits, '-', '_' and '.', with a letter or digit at both ends"
)


def selector_problem(text: str) -> str:
    """Return why the API server would refuse a label selector; empty if it would not.

    A selector without any requirement is refused here, since it has every pod of the namespace.
    """
    problems = map(_requirement_problem, COMMA.split(text))
    return next(filter(None, problems), "")


def _requirement_problem(text: str) -> str:
    if not text.strip(" \t\r\n"):
        return "has a requirement that is empty (a comma too many?)"
    found = REQUIREMENT.fullmatch(text)
    if not found:
        return f"{text.strip()!r} is none of {FORMS}"
    key = found["absent"] or found["key"]
    prefix, slash, name = key.rpartition("/")
    if not _is_name(name):
        return f"key {key!r}: {name!r} is no name {NAME_RULE}"
    if slash and not (PREFIX.fullmatch(prefix) and len(prefix) <= MOST_PREFIX):
        return f"key {key!r}: {prefix!r} is no DNS name of at most {MOST_PREFIX} characters"
    number = found["number"]
    if number and not (re.fullmatch("[0-9]{1,19}", number) and int(number) < 1 << 63):
        return f"value {number!r} of {key!r} is no whole number from 0 to 2^63-1"
    return _values_problem(key, found["value"] or "", found["values"])


def _values_problem(key: str, value: str, several: str | None) -> str:
    if several is not None and not several.strip(" \t\r\n"):
        return f"{key!r} has no values between its parentheses"
    for one in (several or value).split(","):
        trimmed = one.strip(" \t\r\n")
        if trimmed and not _is_name(trimmed):
            return f"value {trimmed!r} of {key!r} is no text {NAME_RULE}"
    return ""


def _is_name(text: str) -> bool:
    return len(text) <= MOST_NAME and NAME.fullmatch(text) is not None
