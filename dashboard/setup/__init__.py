"""The start of the desk: the environment, `up`, its private engine, its supervisor, and the checks of `doctor`."""
