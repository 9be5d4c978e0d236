"""What every section of a recipe is, and the number types they share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import pydantic
from pydantic import Field

Positive = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
PositiveFloat = Annotated[float, Field(gt=0)]


class Section(pydantic.BaseModel):
    """Base of all recipe sections: unknown keys are refused, values are frozen."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)
    former: ClassVar[Mapping[str, object]] = {}
    """Settings that earlier versions had, with their defaults: run folders and indexes that left them there open."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _leave_out_former(cls, raw: Any) -> Any:
        if not isinstance(raw, dict) or not cls.former:
            return raw
        return {key: value for key, value in raw.items() if key not in cls.former or cls.former[key] != value}
