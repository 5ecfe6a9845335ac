// The dialog with the settings of the open conversation and of the page.

import { iconButton, make } from "../dom.js";
import { readTools, SAMPLING } from "../sampling.js";

const THINKING = [["", "Model default"], ["on", "On"], ["off", "Off"]];
const RANDOM_SEED = 0xffffffff; // how llama.cpp's API spells a new seed for each answer
const KEYS = [
  ["Enter", "send"],
  ["Shift+Enter", "new line"],
  ["Esc", "stop the answer"],
  ["↑ in an empty field", "edit the last message"],
  ["Ctrl+Shift+O", "new chat"],
  ["Ctrl+K", "search conversations"],
  ["Ctrl+,", "settings"],
];

export class SettingsSheet {
  /**
   * @param {object} actions changed(), makeDefault(), exportAll(), importFile(file), removeAll(),
   *   askKey()
   */
  constructor(actions) {
    this.actions = actions;
    this.dialog = document.getElementById("settings");
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close(); // on the backdrop
    });
  }

  /** Opens the dialog. `defaults`: the server's sampling parameters, shown in empty fields. */
  open(conversation, defaults) {
    this.conversation = conversation;
    const close = iconButton("close", "Close settings", () => this.dialog.close());
    this.dialog.replaceChildren(
      make("header", {}, make("h2", { id: "settings-title" }, "Settings"), close),
      make(
        "div",
        { class: "sheet-body" },
        make("p", { class: "hint" }, "For this chat."),
        this.system(),
        this.sampling(defaults),
        this.reasoning(),
        this.tools(),
        this.asDefault(),
        this.data(),
        shortcuts(),
        make("div", { class: "toasts-inside", role: "status" }),
      ),
    );
    this.dialog.showModal();
  }

  set(name, value) {
    const { settings } = this.conversation;
    if (value === "" || value === null) delete settings[name];
    else settings[name] = value;
    this.actions.changed();
  }

  system() {
    const area = make("textarea", { rows: "4", dir: "auto", placeholder: "None" });
    area.value = this.conversation.system;
    area.addEventListener("input", () => {
      this.conversation.system = area.value;
      this.actions.changed();
    });
    return section("System prompt", make("label", {}, span("Instructions for the model"), area));
  }

  sampling(defaults) {
    const fields = SAMPLING.map(({ name, label, min, max, step, tip }) => {
      const input = this.number(name, min, max, step, defaults[name]);
      return make("label", { class: "row" }, span(label, tip), input);
    });
    const stop = make("textarea", { rows: "2", placeholder: "None" });
    stop.value = this.conversation.settings.stop ?? "";
    stop.addEventListener("input", () => this.set("stop", stop.value));
    const stops = make("label", {}, span("Stop strings", "one a line"), stop);
    return section("Sampling", ...fields, stops);
  }

  number(name, min, max, step, otherwise) {
    const input = make("input", { type: "number", min, max, step, inputmode: "decimal" });
    input.name = name;
    input.placeholder = placeholder(name, otherwise);
    const value = this.conversation.settings[name];
    if (typeof value === "number") input.value = String(value);
    input.addEventListener("input", () => {
      const valid = input.value !== "" && input.checkValidity();
      input.setAttribute("aria-invalid", String(!input.validity.valid));
      this.set(name, valid ? input.valueAsNumber : null);
    });
    return input;
  }

  reasoning() {
    const select = make("select", { name: "thinking" });
    for (const [value, label] of THINKING) select.append(make("option", { value }, label));
    select.value = this.conversation.settings.thinking ?? "";
    select.addEventListener("change", () => this.set("thinking", select.value));
    return section(
      "Reasoning",
      make("label", { class: "row" }, span("Think before the answer"), select),
      make(
        "label",
        { class: "row" },
        span("Budget", "tokens of reasoning at most"),
        this.number("thinking_budget", 0, 1_000_000, 1, null),
      ),
    );
  }

  tools() {
    const placeholder = '[{"name": "get_weather", "parameters": {…}}]';
    const area = make("textarea", { rows: "4", class: "mono", spellcheck: "false", placeholder });
    area.value = this.conversation.tools;
    const error = make("p", { class: "field-error", role: "alert" });
    area.addEventListener("input", () => {
      this.conversation.tools = area.value;
      this.actions.changed();
      error.textContent = "";
    });
    area.addEventListener("change", () => {
      try {
        readTools(area.value);
      } catch (problem) {
        error.textContent = problem.message;
      }
    });
    const tip = "JSON, as in OpenAI's API. You give the results of calls yourself.";
    return section("Tools", make("label", {}, span("Functions", tip), area), error);
  }

  asDefault() {
    const { makeDefault } = this.actions;
    return make(
      "button",
      { type: "button", onclick: makeDefault },
      "Use these settings for new chats",
    );
  }

  data() {
    const { exportAll, importFile, removeAll, askKey } = this.actions;
    const file = make("input", { type: "file", accept: ".json,application/json", hidden: true });
    file.addEventListener("change", () => {
      if (file.files[0]) importFile(file.files[0]);
      file.value = "";
    });
    const button = (label, onclick) => make("button", { type: "button", onclick }, label);
    return section(
      "Conversations",
      make("p", { class: "hint" }, "They are stored only in this browser."),
      make(
        "div",
        { class: "buttons" },
        button("Export all", exportAll),
        button("Import", () => file.click()),
        button("Delete all", () => {
          if (confirm("Delete all conversations in this browser?")) removeAll();
        }),
        button("API key", askKey),
      ),
      file,
    );
  }
}

function section(title, ...children) {
  return make("section", {}, make("h3", {}, title), ...children);
}

function span(text, tip = "") {
  return make("span", { class: "label" }, text, tip ? make("small", {}, tip) : null);
}

/** Returns the placeholder of an empty field: the server's default if it is a number. */
function placeholder(name, otherwise) {
  const isSet = typeof otherwise === "number" && otherwise >= 0;
  if (name === "seed") return isSet && otherwise < RANDOM_SEED ? String(otherwise) : "random";
  return isSet ? round(otherwise) : "auto";
}

function round(value) {
  return String(Math.round(value * 10_000) / 10_000);
}

function shortcuts() {
  const rows = KEYS.flatMap(([keys, what]) => [make("dt", {}, keys), make("dd", {}, what)]);
  return section("Keyboard", make("dl", { class: "shortcuts" }, ...rows));
}
