"""Compare what warmpath predicts with what a recorded engine did.

It replays a recording (`warmpath record`, or one in the same format) through the
router's own parts: frames go through stream, codec and index as if from a socket. For each request it
predicts the cached tokens and compares them with the engine's report.

A prediction uses the batches before the one that announces the request's own blocks, the latest that a
router could have known. If a request waits in the engine's queue, they come after its arrival, so
the prediction on arrival is counted separately.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from warmpath.lab.verify.cause import RecordingOutcome
from warmpath.lab.verify.predict import Conditions, verify
from warmpath.lab.verify.recording import BadRecordingError, read_recording
from warmpath.process.command_line import FINE, FOUND, USAGE, command_parser, in_words


def main(argv: Sequence[str] | None = None) -> int:
    """Compare what warmpath predicts with what a recorded engine did.

    The exit status is 0 for any result, 1 if the recording is cut off, and 2 if the file cannot be read
    or is no recording.
    """
    parser = command_parser("verify", __doc__, "warmpath verify one.jsonl.gz")
    parser.add_argument("recording", type=Path, help="a .jsonl or .jsonl.gz file")
    parser.add_argument(
        "--start-at",
        type=float,
        default=0.0,
        metavar="FRACTION",
        help="begin to follow when this share of the recording has passed (0 to 1)",
    )
    parser.add_argument(
        "--no-replay", action="store_true", help="as if the engine had no replay endpoint"
    )
    parser.add_argument(
        "--drop",
        type=float,
        default=0.0,
        metavar="RATE",
        help="lose this share of the live batches on the way (0 to 1)",
    )
    parser.add_argument("--seed", type=int, default=0, help="says which ones")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(argv)
    for option in ("start_at", "drop"):
        if not 0 <= getattr(args, option) <= 1:
            parser.error(f"--{option.replace('_', '-')}: must be from 0 to 1")
    conditions = Conditions(args.start_at, not args.no_replay, args.drop, args.seed)
    try:
        outcome = verify(read_recording(args.recording), conditions)
    except (BadRecordingError, OSError) as error:
        print(f"warmpath verify: {_problem(args.recording, error)}", file=sys.stderr)
        return USAGE
    print(json.dumps(outcome.to_json()) if args.json else _readable(outcome))
    return FOUND if outcome.cut_after else FINE


def _readable(outcome: RecordingOutcome) -> str:
    lines = [
        "no request was compared"
        if not outcome.requests
        else (
            f"{outcome.exact} of {outcome.requests} requests predicted exactly "
            f"({outcome.exact_ratio:.1%}); on arrival {outcome.exact_on_arrival}"
        ),
        f"mean absolute error {outcome.mean_abs_error_tokens:.2f} tokens a request",
        f"at the end the view is {outcome.trust.level}: {outcome.trust.reason}",
        f"overclaimed while exact: {outcome.overclaimed}",
    ]
    if outcome.cut_after:
        lines.append(f"the recording is cut off: it ends in the middle of line {outcome.cut_after}")
    if outcome.skipped:
        lines.append(
            f"{outcome.skipped} requests have no figure to compare with (failed, or no usage)"
        )
    lines += [
        f"  life {miss.life} request {miss.request}: predicted {miss.predicted}, "
        f"engine {miss.actual}: {miss.reason}"
        for miss in outcome.mismatches
    ]
    return "\n".join(lines)


def _problem(recording: Path, error: Exception) -> str:
    said = in_words(error)
    return said if said.startswith(f"{recording}: ") else f"{recording}: {said}"
