"""The ports of a page's commands, replaced by free ones."""

import re
from collections.abc import Mapping


def with_own_ports(text: str, ports: Mapping[str, int], before: str = ":") -> str:
    """Return a text with other ports, where they follow a match of the pattern `before`.

    All are replaced at once: a free port may begin as the page's next one does.
    """
    return re.sub(
        rf"({before})(\d+)\b", lambda found: found[1] + str(ports.get(found[2], found[2])), text
    )
