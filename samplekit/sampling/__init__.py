"""The only loop, and the runs it makes: chunks, stores, stop rules, progress."""
