"""What a doctor finds in a store, whichever it is."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: what should hold, whether it does, and where it does not."""

    check: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, and what the store holds by name (numbers of queues, messages, …)."""

    findings: list[Finding] = field(default_factory=list)
    facts: dict[str, str | int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every check held."""
        return all(finding.ok for finding in self.findings)
