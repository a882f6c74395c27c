"""Services that a test starts, and that end however the test ends."""

from abc import ABC, abstractmethod
from typing import Self


class Service(ABC):
    """A service that runs during a `with` block; if it fails to start, it is cleaned up."""

    @abstractmethod
    def start(self) -> None:
        """Start it and wait until it serves."""

    @abstractmethod
    def close(self) -> None:
        """End it, whether or not it has started."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
