"""An agent: what a run has learned, to act with, evaluate, save and export."""
