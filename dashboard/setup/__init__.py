"""Start of the desk: environment, `up`, its private engine, its supervisor, and the checks of `doctor`."""
