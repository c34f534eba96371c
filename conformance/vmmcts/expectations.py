"""Expectations: failures that are known, each with its reason, its owner and its end."""

from __future__ import annotations

import dataclasses
import datetime
import operator
import re
from collections.abc import Callable

_OPERATORS: dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_CONDITION = re.compile(r"(<=|>=|==|!=|<|>)\s*(\d+)(?:\.(\d+))?")


@dataclasses.dataclass(frozen=True)
class Versions:
    """A range of driver versions: ">=12.4,<13.1", in the versions of cuDriverGetVersion."""

    conditions: tuple[tuple[str, tuple[int, int]], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Versions:
        """Reads a range; an empty text is every version. ValueError when it is none."""
        conditions = []
        for part in filter(None, (part.strip() for part in text.split(","))):
            match = _CONDITION.fullmatch(part)
            if match is None:
                raise ValueError(f"driver = '{text}' is no range such as '>=12.4,<13.1'")
            conditions.append((match[1], (int(match[2]), int(match[3] or 0))))
        return cls(tuple(conditions))

    def contains(self, driver_version: int) -> bool:
        """Whether a CUresult-style number (13000 is 13.0) is in the range."""
        version = (driver_version // 1000, driver_version % 1000 // 10)
        return all(_OPERATORS[word](version, bound) for word, bound in self.conditions)


@dataclasses.dataclass(frozen=True)
class Expectation:
    """One entry of a manifest. It waives what its reason matches, while its conditions hold."""

    reason: re.Pattern[str]
    link: str
    owner: str
    expires: datetime.date
    clause: str | None = None
    scenario: str | None = None
    worker: str | None = None
    driver: Versions = dataclasses.field(default_factory=Versions)
    device: re.Pattern[str] = dataclasses.field(default_factory=lambda: re.compile(""))

    @property
    def target(self) -> str:
        """The clause or the scenario that is expected to fail."""
        return self.clause or self.scenario or ""

    def applies(self, driver_version: int, device: str) -> bool:
        """Whether the conditions hold on this machine."""
        return self.driver.contains(driver_version) and self.device.search(device) is not None

    def expired(self, today: datetime.date) -> bool:
        """Whether its end has passed."""
        return today > self.expires

    def waives(self, clause: str, scenario: str, worker: str, text: str) -> bool:
        """Whether a finding about a clause, in a scenario on a worker, is what was expected."""
        return (
            (self.clause is None or self.clause == clause)
            and (self.scenario is None or self.scenario == scenario)
            and (self.worker is None or self.worker == worker)
            and self.reason.search(text) is not None
        )
