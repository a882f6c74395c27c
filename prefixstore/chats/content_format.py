"""Detects whether a template expects a message's content as a string or as a list of parts.

Follows vLLM 0.32, `renderers/hf.py` (`_detect_content_format`), step by step, its simplifications
included: a template that loops over a message's content expects parts, any other a string. Where
vLLM's search fails, as on a loop with several targets, vLLM and this module assume a string.
"""

from collections import deque
from collections.abc import Iterator

from jinja2 import nodes


def takes_parts(tree: nodes.Template) -> bool:
    """Return whether a template loops over the parts of a message's content."""
    try:
        return _loops_over_content(tree)
    except _NotAPlainNameError:
        return False


class _NotAPlainNameError(Exception):
    """An assignment or loop has a target other than a plain name, where vLLM's assertion fails."""


def _loops_over_content(tree: nodes.Template) -> bool:
    messages = _message_names(tree)
    given = _content_parameters(tree, messages)
    in_macros = {id(loop) for macro in tree.find_all(nodes.Macro) for loop in _loops(macro)}
    for loop in _loops(tree):
        iterated = loop.iter
        if any(_reads(iterated, name, "content") for name in messages):
            _target(loop.target)
            return True
        if not isinstance(iterated, nodes.Name):
            continue
        outside = id(loop) not in in_macros and iterated.name == "content"
        if outside or iterated.name in given.get(id(loop), ()):
            _target(loop.target)
            return True
    return False


def _loops(tree: nodes.Node) -> Iterator[nodes.For]:
    return tree.find_all(nodes.For)


def _message_names(tree: nodes.Template) -> list[str]:
    lists = ["messages"]
    pending = deque(lists)
    while pending:
        name = pending.popleft()
        for assign in tree.find_all(nodes.Assign):
            if _reads(assign.node, name):
                target = _target(assign.target)
                lists.append(target)
                # vLLM guards against a name that is assigned to itself. Two names assigned to each
                # other would keep it busy for ever; here each is followed once.
                if target not in lists[:-1]:
                    pending.append(target)
    return [
        _target(loop.target)
        for loop in _loops(tree)
        if any(_reads(loop.iter, name) for name in lists)
    ]


def _content_parameters(tree: nodes.Template, messages: list[str]) -> dict[int, set[str]]:
    """Return, by the `id` of each loop in a macro, the macro's parameters that receive a content."""

    def is_content(node: nodes.Node) -> bool:
        return any(_reads(node, name, "content") for name in messages)

    found: dict[int, set[str]] = {}
    for macro in tree.find_all(nodes.Macro):
        names = [argument.name for argument in macro.args]
        given: set[str] = set()
        for call in tree.find_all(nodes.Call):
            if not isinstance(call.node, nodes.Name) or call.node.name != macro.name:
                continue
            given.update(
                name for name, value in zip(names, call.args, strict=False) if is_content(value)
            )
            given.update(
                pair.key for pair in call.kwargs if pair.key in names and is_content(pair.value)
            )
        if given:
            found.update((id(loop), given) for loop in _loops(macro))
    return found


def _reads(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """Return whether an expression reads variable `name`, or its item `key`, filtered or sliced."""
    if isinstance(node, nodes.Filter | nodes.Test):
        return _reads(node.node, name, key)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _reads(node.node, name, key)
    if key is None:
        return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
    if isinstance(node, nodes.Getitem):
        at = node.arg
        return _reads_plainly(node.node, name) and isinstance(at, nodes.Const) and at.value == key
    if isinstance(node, nodes.Getattr):
        return _reads_plainly(node.node, name) and node.attr == key
    return False


def _reads_plainly(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name


def _target(node: nodes.Node) -> str:
    if not isinstance(node, nodes.Name):
        raise _NotAPlainNameError
    return node.name
