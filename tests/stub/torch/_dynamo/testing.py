"""The stub's torch._dynamo.testing."""

from .. import empty_strided as rand_strided

__all__ = ["rand_strided"]
