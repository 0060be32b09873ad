"""The command `rn50`: fill in a configuration, launch the workers, measure and export."""
