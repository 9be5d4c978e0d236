"""A few seconds of `make fuzz`, from the same seed every time."""

from tests.attack.fuzz_sandbox import small_arena, test_no_random_attack_gets_out

__all__ = ["small_arena", "test_no_random_attack_gets_out"]
