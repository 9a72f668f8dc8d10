"""What a profile section is made of: frozen, strict dataclasses, checked by pydantic.

Each package declares its own section with `@section`; `config.profile` reads YAML into it.
"""

from typing import Any, dataclass_transform

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass


@dataclass_transform(frozen_default=True)
def section(cls: type) -> Any:
    """Make `cls` a frozen dataclass whose fields are type-checked strictly and whose unknown keys are errors.

    Raise ValueError in `__post_init__` for an impossible combination; the reader adds the file and the line.
    """
    return dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))(cls)
