"""What a test starts, and ends however the test does."""

from abc import ABC, abstractmethod
from typing import Self


class Service(ABC):
    """It runs while a `with` block lasts; one that does not start leaves nothing behind."""

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
