"""What looks for defects of the package itself: simulator, explorer, mutants, fuzzing, worlds of event time. It is not shipped."""
