"""What the page of settings is told: each setting of the running server, without a secret."""

import msgspec


class ShownSetting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting: ``flag`` and ``variable`` are how it is given, ``value`` and ``default`` as a person writes them."""

    name: str
    flag: str
    variable: str
    value: str
    default: str
    description: str

    @property
    def is_default(self) -> bool:
        """Whether it is as it is without being given."""
        return self.value == self.default
