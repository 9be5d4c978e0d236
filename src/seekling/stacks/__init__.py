"""Our environments in other training stacks: verifiers, SkyRL-gym and verl (docs/OTHER_STACKS.md)."""
