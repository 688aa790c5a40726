// Before the first paint: applies the stored theme, light or dark; without one the system's.
(() => {
  try {
    const theme = localStorage.getItem("redrive-theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch { /* no storage: the system decides */ }
  document.documentElement.classList.add("js");
})();
