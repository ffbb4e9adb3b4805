"""The dataflow graph: operators, streams, policies, plans and their drawings."""
