"""Label selectors, as apimachinery's `labels.Parse` takes or refuses them."""

import re

import pytest

from warmpath.router.config.selector import selector_problem

NAME = "a" * 63


@pytest.mark.parametrize(
    "text",
    [
        "a=b", "a==b", "a!=b", "a=", "a!=", "a= ,z= ", " a = b , c", "app.kubernetes.io/name=vllm,tier=gpu",
        "x in (a)", "x in(a,b),y", "x notin (a, b),!y", "x in (a,)", "x in (,a)", "x in (,)", "!x", "! x", "x,y",
        "in", "notin=in", "in in (in)", "x>1", "x < 7,y", "x>9223372036854775807", f"{NAME}={NAME}",
        "A_b.c-d=1_2.3-4", "a\t=\nb", f"{'a.' * 126}a/{NAME}",
    ],
)  # fmt: skip
def test_a_selector_of_kubernetes_grammar_is_taken(text: str) -> None:
    assert selector_problem(text) == ""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("  ", "empty"), ("a=b,", "empty"), (",a=b", "empty"), ("a=b,,c=d", "empty"),
        ("a=b=c", "'a=b=c' is none of key=value"), ("a===b", "is none of"), ("a b", "is none of"),
        ("app:vllm", "key 'app:vllm': 'app:vllm' is no name"), ("=b", "is none of"), ("!a=b", "is none of"),
        ("!!a", "is none of"), ("xin (a)", "is none of"), ("x in a", "is none of"), ("x in (a", "is none of"),
        ("x in (a,b", "'x in (a' is none of"), ("x in (a))", "is none of"), ("x in ((a))", "is none of"),
        ("x in ()", "'x' has no values"), ("x in ( )", "has no values"), ("x in (a b)", "value 'a b' of 'x'"),
        ("x not in (a)", "is none of"), ("x IN (a)", "is none of"), ("x in (a), y=-", "value '-' of 'y'"),
        ("a/b/c=d", "'a/b' is no DNS name"), ("/a=b", "'' is no DNS name"), ("a/=b", "'' is no name"),
        ("UPPER/a=b", "'UPPER' is no DNS name"), (f"{'a.' * 127}a/b", "DNS name of at most 253"),
        (f"{NAME}a=b", "at most 63"), (f"a={NAME}a", "at most 63"), ("a=é", "value 'é'"), ("a='b'", "of 'a'"),
        ("x>", "is none of"), ("x>a", "'a' of 'x' is no whole number"), ("x>1.5", "no whole number"),
        ("x<-1", "no whole number"), ("x>9223372036854775808", "no whole number"), ("x>=1", "is none of"),
    ],
)  # fmt: skip
def test_another_selector_is_refused_with_its_part_and_the_rule(text: str, problem: str) -> None:
    assert re.search(re.escape(problem), selector_problem(text))
