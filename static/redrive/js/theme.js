// Before the first paint: the remembered choice of light or dark; none means what the system says.
(() => {
  try {
    const theme = localStorage.getItem("redrive-theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch { /* storage is off: the system decides */ }
  document.documentElement.classList.add("js");
})();
