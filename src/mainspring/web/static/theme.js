// Apply the chosen theme before the first paint, so that nothing flashes.
(() => {
  try {
    const theme = localStorage.getItem("mainspring.theme");
    if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
  } catch { /* a browser that keeps nothing */ }
})();
