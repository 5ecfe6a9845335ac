// Functions that create the elements of the page. No markup is parsed: all text is inserted as
// text.

const SVG = "http://www.w3.org/2000/svg";

/**
 * Creates an element: `make("button", { class: "icon", onclick: f }, "text", child)`.
 * Properties that begin with "on" are listeners; true and false set or omit an attribute.
 */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, value);
    }
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Icon outlines on a grid of 20 by 20.
const ICONS = {
  add: "M10 4v12M4 10h12",
  branchLeft: "M12 5l-5 5 5 5",
  branchRight: "M8 5l5 5-5 5",
  check: "M4 10.5l4 4 8-9",
  close: "M5 5l10 10M15 5L5 15",
  copy: "M7 7h9v9H7zM4 13V4h9",
  down: "M10 4v12M5 11l5 5 5-5",
  edit: "M4 16l1-4 8.5-8.5 3 3L8 15z",
  export: "M10 12V3M6.5 6.5L10 3l3.5 3.5M4 12v5h12v-5",
  menu: "M3 5h14M3 10h14M3 15h14",
  moon: "M16 12.5A7 7 0 0 1 7.5 4a6.5 6.5 0 1 0 8.5 8.5z",
  redo: "M16 4v4h-4M15.5 8A6 6 0 1 0 16 12",
  remove: "M4 6h12M8 6V4h4v2M6 6l.7 10h6.6L14 6",
  search: "M9 4a5 5 0 1 0 0 10A5 5 0 0 0 9 4zM13 13l4 4",
  send: "M10 16V4M5 9l5-5 5 5",
  settings: "M3 6h7M14 6h3M3 14h3M10 14h7M12 4v4M8 12v4",
  stop: "M6 6h8v8H6z",
  sun:
    "M10 7a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM10 2v2M10 16v2M2 10h2M16 10h2M4.5 4.5L6 6M14 14l1.5 1.5" +
    "M4.5 15.5L6 14M14 6l1.5-1.5",
  system: "M3 4h14v9H3zM7 17h6M10 13v4",
};

/** Creates an icon by name. It is hidden from screen readers; its button has the label. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 20 20");
  svg.setAttribute("aria-hidden", "true");
  svg.classList.add("icon", `icon-${name}`);
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/** Creates a button that shows only an icon. */
export function iconButton(name, label, onclick, properties = {}) {
  const given = { type: "button", class: "icon-button", "aria-label": label, title: label };
  return make("button", { ...given, onclick, ...properties }, icon(name));
}

/** Creates a button that copies the result of `text()`, and confirms it. */
export function copyButton(label, text) {
  const button = iconButton("copy", label, async () => {
    const done = await copyText(text());
    button.replaceChildren(icon(done ? "check" : "close"));
    button.setAttribute("aria-label", done ? "Copied" : "Copying failed");
    setTimeout(() => {
      button.replaceChildren(icon("copy"));
      button.setAttribute("aria-label", label);
    }, 1500);
  });
  return button;
}

/** Copies text to the clipboard, also on pages without TLS, which have no clipboard API. */
async function copyText(text) {
  try {
    if (navigator.clipboard) {
      await navigator.clipboard.writeText(text);
      return true;
    }
  } catch {
    // Not permitted: try document.execCommand below.
  }
  const area = make("textarea", { class: "offscreen", readonly: true, "aria-hidden": "true" });
  const focused = document.activeElement;
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  area.value = text;
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  focused?.focus();
  return done;
}
