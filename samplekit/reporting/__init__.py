"""The report: a run and its diagnosis as one page that opens anywhere; computes no verdict."""
