"""`rn50 diagnose`: where the time of a run goes, what would help, and by how much."""
