"""Reader of what llmprof's own timer of operators writes: one file a rank, with modules of a model and their times."""
