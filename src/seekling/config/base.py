"""What every section of a recipe is, and the number types they share."""

from __future__ import annotations

from typing import Annotated

import pydantic
from pydantic import Field

Positive = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
PositiveFloat = Annotated[float, Field(gt=0)]


class Section(pydantic.BaseModel):
    """Base of all recipe sections: unknown keys are refused, values are frozen."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)
