// The theme, before anything is drawn. A classic script: modules run only after the first paint.

(() => {
  let theme = null;
  try {
    theme = JSON.parse(localStorage.getItem("zinc.preferences") ?? "{}").theme;
  } catch {
    // Without storage, or with a damaged one, the system decides.
  }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
})();
