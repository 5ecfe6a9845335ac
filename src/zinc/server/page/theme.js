// Sets the theme before the first paint. This is a classic script because modules run later.

(() => {
  let theme = null;
  try {
    theme = JSON.parse(localStorage.getItem("zinc.preferences") ?? "{}").theme;
  } catch {
    // Without storage, the system's theme applies.
  }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
})();
