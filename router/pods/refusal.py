"""Puts into words that an API server of Kubernetes refuses a request."""

import msgspec

from warmpath.router.pods.discover import SourceError
from warmpath.router.pods.watched import Status

REACH = "look whether the API server runs, and whether a NetworkPolicy lets this process reach it"
LOG_IN = "renew the service account's token or the kubeconfig, which the API server does not accept"
FORBIDDEN = 403
LATE = 504
"""The status of a version that the server's own copy has not reached yet, as after a restart."""
NOT_FOUND = 404


def said(body: bytes) -> Status:
    """Return what the body of an answer says of an error; a proxy's says nothing."""
    try:
        return msgspec.json.decode(body, type=Status)
    except ValueError:
        return Status()


class Refused(SourceError):  # noqa: N818  no error of ours
    """The API server does not do what it was asked to do."""

    def __init__(self, verb: str, resource: str, namespace: str, status: Status) -> None:
        problem = f"{verb} {resource} in namespace {namespace}: {status.code} {status.reason}"
        problem += f": {status.message}" if status.message else ""
        advice = LOG_IN if status.code == 401 else REACH
        if status.code == FORBIDDEN:
            problem += f"; its Role lacks the verb {verb!r} for {resource!r}"
            advice = (
                f"add the verb {verb!r} for {resource!r} to the Role of the router's ServiceAccount "
                f"in namespace {namespace}; the router asks again by itself"
            )
        super().__init__(problem, advice=advice)
        self.code = status.code
        self.may_pass = status.code in (FORBIDDEN, LATE)
        """Whether a server that has just started says so although nothing is wrong."""
