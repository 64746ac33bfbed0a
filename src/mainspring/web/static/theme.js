// Before the first paint: the theme that was chosen. Runs by itself, so that nothing flashes.
(() => {
  try {
    const theme = localStorage.getItem("mainspring.theme");
    if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
  } catch { /* a browser that keeps nothing */ }
})();
