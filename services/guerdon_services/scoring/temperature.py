"""What logits are divided by."""

from typing import Annotated

from pydantic import Field

#: Quotients and their gradients stay within fp32.
Temperature = Annotated[float, Field(ge=1e-9, le=1e9)]
