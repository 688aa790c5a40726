"""How the desk starts: the environment, `up`, its private engine, its supervisor, and the checks of `doctor`."""
