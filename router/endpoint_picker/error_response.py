"""The HTTP response of a request that gets no pick; `outcomes` decides which."""

import math

import msgspec

from warmpath.router.endpoint_picker.actions import ImmediateReply, NoPickResponse, Settings

UNAVAILABLE = 503
TOO_MANY = 429


def immediate(refusal: NoPickResponse, header: str) -> ImmediateReply:
    """Return a refusal as a response, in the form of OpenAI's errors; `header` gets the reason."""
    error = {"message": refusal.text, "type": TYPES[refusal.status], "code": refusal.reason}
    put: Settings = (("content-type", "application/json"),)
    if header:
        put += ((header, refusal.reason),)
    if refusal.retry_after:
        put += (("retry-after", str(math.ceil(refusal.retry_after))),)
    return ImmediateReply(refusal.status, msgspec.json.encode({"error": error}), put)


TYPES = {UNAVAILABLE: "service_unavailable", TOO_MANY: "too_many_requests"}
