// The user's preferences in this browser: theme, model, defaults for new chats, API key.
// The key is only stored for this tab, unless the user asks to keep it.

const NAME = "zinc.preferences";
const KEY = "zinc.key";

function read(storage, name) {
  try {
    return storage.getItem(name);
  } catch {
    return null; // storage may be forbidden
  }
}

function write(storage, name, value) {
  try {
    if (value) storage.setItem(name, value);
    else storage.removeItem(name);
  } catch {
    // No storage: preferences last as long as the page.
  }
}

export class Preferences {
  constructor() {
    this.values = {};
    try {
      this.values = JSON.parse(read(localStorage, NAME) ?? "{}") ?? {};
    } catch {
      // Damaged: start with defaults.
    }
    this.key = read(sessionStorage, KEY) ?? read(localStorage, KEY) ?? "";
  }

  get(name, otherwise) {
    return this.values[name] ?? otherwise;
  }

  set(name, value) {
    this.values[name] = value;
    write(localStorage, NAME, JSON.stringify(this.values));
  }

  setKey(key, keep) {
    this.key = key;
    write(sessionStorage, KEY, key);
    write(localStorage, KEY, keep ? key : "");
  }

  get keepsKey() {
    return Boolean(read(localStorage, KEY));
  }
}
