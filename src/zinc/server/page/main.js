// Starts the page: creates its parts and sets up the sidebar, the theme and keyboard shortcuts.

import { App } from "./app.js";
import { icon } from "./dom.js";
import { Preferences } from "./preferences.js";
import { Store } from "./store.js";
import { isComposing, isTouch } from "./view/field.js";

const THEMES = ["system", "light", "dark"];
const THEME_ICONS = { system: "system", light: "sun", dark: "moon" };

const byId = (id) => document.getElementById(id);
const preferences = new Preferences();
const isNarrow = matchMedia("(max-width: 48rem)");

function drawTheme() {
  const theme = preferences.get("theme", "system");
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  const button = byId("theme");
  button.replaceChildren(icon(THEME_ICONS[theme]));
  button.setAttribute("aria-label", `Theme: ${theme}`);
  button.title = `Theme: ${theme}`;
}

function nextTheme() {
  const at = THEMES.indexOf(preferences.get("theme", "system"));
  preferences.set("theme", THEMES[(at + 1) % THEMES.length]);
  drawTheme();
}

/** On a narrow screen the sidebar covers the page, which then accepts no input. */
function showSidebar(isShown) {
  const sidebar = byId("sidebar");
  document.body.classList.toggle("with-sidebar", isShown);
  sidebar.inert = !isShown;
  const covers = isShown && isNarrow.matches;
  byId("main").inert = covers;
  byId("scrim").hidden = !covers;
  byId("show-sidebar").hidden = isShown && !isNarrow.matches;
  byId("show-sidebar").setAttribute("aria-expanded", String(isShown));
}

function toggleSidebar(isShown) {
  if (!isNarrow.matches) preferences.set("sidebar", isShown);
  showSidebar(isShown);
  // The keyboard of a phone would cover the list.
  byId(isShown ? (isTouch() ? "hide-sidebar" : "search") : "show-sidebar").focus();
}

function fillButtons() {
  byId("new-chat").append(icon("add"), "New chat");
  byId("new-chat-short").append(icon("add"));
  byId("hide-sidebar").append(icon("close"));
  byId("show-sidebar").append(icon("menu"));
  byId("open-settings").append(icon("settings"));
  byId("to-end").append(icon("down"));
}

function onKey(app, event) {
  const isDialog = Boolean(document.querySelector("dialog[open]"));
  const control = event.ctrlKey || event.metaKey;
  const key = event.key.toLowerCase();
  if (event.key === "Escape" && !isDialog && !isComposing(event)) {
    if (isNarrow.matches && document.body.classList.contains("with-sidebar")) toggleSidebar(false);
    else app.stop();
  } else if (control && event.shiftKey && key === "o" && !isDialog) {
    event.preventDefault();
    app.newChat();
  } else if (control && !event.shiftKey && key === "k" && !isDialog) {
    event.preventDefault();
    toggleSidebar(true);
    byId("search").focus();
  } else if (control && key === "," && !isDialog) {
    event.preventDefault();
    app.openSettings();
  }
}

async function start() {
  fillButtons();
  drawTheme();
  const showByWidth = () => showSidebar(!isNarrow.matches && preferences.get("sidebar", true));
  showByWidth();
  isNarrow.addEventListener("change", showByWidth);
  // Set these up before opening the store, which may take a while.
  byId("theme").addEventListener("click", nextTheme);
  byId("show-sidebar").addEventListener("click", () => toggleSidebar(true));
  byId("hide-sidebar").addEventListener("click", () => toggleSidebar(false));
  byId("scrim").addEventListener("click", () => toggleSidebar(false));
  const app = new App(await Store.open(), preferences);
  app.onOpen = () => {
    if (isNarrow.matches) showSidebar(false);
  };
  byId("new-chat").addEventListener("click", () => app.newChat());
  byId("new-chat-short").addEventListener("click", () => app.newChat());
  byId("open-settings").addEventListener("click", () => app.openSettings());
  document.addEventListener("keydown", (event) => onKey(app, event));
  await app.start();
  app.composer.focus();
}

start();
