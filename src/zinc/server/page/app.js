// The controller of the page: conversations, running answers, and their views.
//
// Every change of a conversation is made here: change it, `draw` it, save it.

import { Api } from "./api.js";
import { fileName } from "./format.js";
import { Generation } from "./generation.js";
import { Models } from "./models.js";
import { readTools, requestFields } from "./sampling.js";
import { exportText, importText } from "./transfer.js";
import {
  addNode, apiMessages, choose, newConversation, pathTo, shownPath, titleOf,
} from "./tree.js";
import { Composer } from "./view/composer.js";
import { KeyDialog } from "./view/key.js";
import { ModelPicker } from "./view/models.js";
import { say, toast } from "./view/notices.js";
import { SettingsSheet } from "./view/settings.js";
import { Sidebar } from "./view/sidebar.js";
import { Thread } from "./view/thread.js";
import { UsageLine } from "./view/usage.js";

const SAVE_MS = 800;

export class App {
  constructor(store, preferences) {
    this.store = store;
    this.preferences = preferences;
    this.api = new Api(() => preferences.key);
    this.conversations = new Map();
    this.generations = new Map(); // by the id of their conversation
    this.saving = new Map(); // timers, by conversation
    this.models = new Models(this.api, (error) => this.modelsChanged(error));
    this.picker = new ModelPicker((name) => this.pickModel(name));
    this.usage = new UsageLine();
    this.thread = new Thread({
      regenerate: (node) => this.regenerate(node),
      edit: (node, text) => this.edit(node, text),
      choose: (id, label) => this.chooseVersion(id, label),
      proceed: (node) => this.answer(this.current, node),
      answerCalls: (node, results) => this.answerCalls(node, results),
    });
    this.composer = new Composer({
      send: (text) => this.send(text),
      stop: () => this.stop(),
      editLast: () => this.thread.editLast(),
    });
    this.sidebar = new Sidebar({
      open: (conversation) => this.open(conversation),
      rename: (conversation, title) => this.rename(conversation, title),
      exportOne: (conversation) => download(titleOf(conversation), exportText([conversation])),
      remove: (conversation) => this.remove(conversation),
    });
    this.settings = new SettingsSheet({
      changed: () => this.saveSoon(this.current),
      makeDefault: () => this.makeDefault(),
      exportAll: () => download("zinc-conversations", exportText([...this.conversations.values()])),
      importFile: (file) => this.importFile(file),
      removeAll: () => this.removeAll(),
      askKey: () => this.askKey(),
    });
    this.keyDialog = new KeyDialog((key, keep) => {
      preferences.setKey(key, keep);
      this.models.look();
    });
  }

  async start() {
    for (const conversation of await this.store.all()) {
      mendInterrupted(conversation);
      this.conversations.set(conversation.id, conversation);
    }
    this.store.onChange((id) => this.changedElsewhere(id));
    document.getElementById("not-lasting").hidden = this.store.isLasting;
    addEventListener("hashchange", () => this.openFromAddress());
    addEventListener("pagehide", () => this.saveAllNow());
    this.openFromAddress();
    this.models.look();
  }

  // -- which conversation is open -----------------------------------------------------------------

  openFromAddress() {
    const id = location.hash.slice(1);
    if (id === this.current?.id) return;
    this.open(this.conversations.get(id) ?? this.blank());
  }

  blank() {
    const { system = "", settings = {}, tools = "" } = this.preferences.get("defaults", {});
    return newConversation({ system, settings: { ...settings }, tools });
  }

  newChat() {
    this.open(this.blank());
    this.composer.focus();
  }

  open(conversation) {
    if (conversation === this.current) return;
    this.show(conversation);
    this.onOpen?.();
  }

  /** Shows a conversation; unlike `open`, it leaves the sidebar open on a narrow screen. */
  show(conversation) {
    this.current = conversation;
    const kept = this.conversations.has(conversation.id);
    const address = kept ? `#${conversation.id}` : location.pathname + location.search;
    if (location.hash.slice(1) !== (kept ? conversation.id : "")) {
      history.pushState(null, "", address);
    }
    this.thread.clear();
    this.draw();
  }

  // -- drawing ------------------------------------------------------------------------------------

  draw() {
    const { current } = this;
    const path = shownPath(current);
    const generation = this.generations.get(current.id);
    const lostFocus = this.thread.show(current, path, generation);
    this.composer.setBusy(Boolean(generation));
    if (lostFocus) this.composer.takeFocus();
    const title = titleOf(current);
    document.getElementById("title").textContent = title;
    document.title = path.length ? `${title} – zinc` : "zinc";
    this.sidebar.show(this.conversations.values(), current.id, this.generations);
    this.drawModel(path);
  }

  drawModel(path = shownPath(this.current)) {
    const name = this.modelName;
    this.picker.show(this.models.rows, name, this.models.error);
    const used = path.findLast((node) => node.stats?.contextTokens)?.stats.contextTokens ?? null;
    this.usage.show(used, this.models.contextOf(name));
  }

  /** Draws a growing answer, at most once per frame. */
  drawGrowing(conversation) {
    if (conversation !== this.current || this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      const generation = this.generations.get(this.current.id);
      if (generation) this.thread.grow(this.current, generation);
    });
  }

  // -- models -------------------------------------------------------------------------------------

  get modelName() {
    return this.models.choice(this.current.model ?? this.preferences.get("model"));
  }

  pickModel(name) {
    this.current.model = name;
    this.preferences.set("model", name);
    this.save(this.current);
    this.drawModel();
  }

  modelsChanged(error) {
    const banner = document.getElementById("banner");
    if (error?.status === 401) this.askKey(error.message);
    const text = error && error.status !== 401 ? error.message : "";
    if (banner.textContent !== text) banner.textContent = text;
    banner.hidden = !text;
    this.drawModel();
  }

  askKey(problem = "") {
    const { preferences } = this;
    this.keyDialog.open(preferences.key, preferences.keepsKey, preferences.key ? problem : "");
  }

  async openSettings() {
    this.settings.open(this.current, await this.models.defaults(this.modelName));
  }

  makeDefault() {
    const { system, settings, tools } = this.current;
    this.preferences.set("defaults", { system, settings: { ...settings }, tools });
    toast("New chats will start with these settings.");
  }

  // -- messages -----------------------------------------------------------------------------------

  /** Sends a message. Returns false if it cannot be sent; it then stays in the input field. */
  send(text) {
    const { current } = this;
    if (this.generations.has(current.id)) return false;
    const last = shownPath(current).at(-1);
    return this.ask(current, last?.id ?? null, { role: "user", content: text });
  }

  /** Adds a user's or tool's node, and starts an answer to it. */
  ask(conversation, parentId, fields) {
    if (!this.tools(conversation)) return false;
    const node = addNode(conversation, parentId, fields);
    if (!this.conversations.has(conversation.id)) {
      this.conversations.set(conversation.id, conversation);
      history.replaceState(null, "", `#${conversation.id}`);
    }
    this.thread.scrollToEnd();
    this.answer(conversation, this.newAnswer(conversation, node.id));
    return true;
  }

  newAnswer(conversation, parentId) {
    return addNode(conversation, parentId, {
      role: "assistant", reasoning: "", reasoningMs: 0, calls: [], model: this.modelName,
      stats: null, finish: null, error: null,
    });
  }

  /** Adds a new version of a message. Returns false if that cannot be done now. */
  edit(node, text) {
    const { current } = this;
    if (this.generations.has(current.id)) {
      toast("Another answer is still running.", ["Stop it", () => this.stop()]);
      return false;
    }
    if (node.role === "user") {
      return this.ask(current, node.parent, { role: "user", content: text });
    }
    const { reasoning, reasoningMs, calls, model } = node;
    const kept = { reasoning, reasoningMs, calls: structuredClone(calls), model };
    const made = this.newAnswer(current, node.parent);
    Object.assign(made, kept, { content: text, finish: "stop" });
    this.draw();
    this.save(current);
    return true;
  }

  regenerate(node) {
    const { current } = this;
    if (this.generations.has(current.id)) return;
    this.answer(current, this.newAnswer(current, node.parent));
  }

  /** Shows another version of a message. `label`: the button that was pressed for it. */
  chooseVersion(id, label) {
    choose(this.current, id);
    this.draw();
    this.thread.focusMessage(id, label);
    this.save(this.current);
  }

  answerCalls(node, results) {
    this.ask(this.current, node.id, { role: "tool", results });
  }

  /** Returns the tools of a conversation as {tools}, or {}. Null, with a notice, if invalid. */
  tools(conversation) {
    try {
      const tools = readTools(conversation.tools);
      return tools ? { tools } : {};
    } catch (error) {
      toast(error.message, ["Settings", () => this.openSettings()]);
      return null;
    }
  }

  /** Generates the text of an assistant's node, or continues it. */
  async answer(conversation, node) {
    const tools = this.tools(conversation);
    if (!tools || this.generations.has(conversation.id)) return;
    const body = {
      messages: apiMessages(conversation, pathTo(conversation, node.id)),
      ...requestFields(conversation.settings),
      ...tools,
    };
    if (this.modelName) body.model = this.modelName;
    node.stats = null;
    const draw = () => this.drawGrowing(conversation);
    const changed = () => {
      draw();
      if (generation.chunks === 1) this.models.answers(node.model);
      this.saveSoon(conversation);
    };
    const generation = new Generation(this.api, node, body, changed, draw);
    this.generations.set(conversation.id, generation);
    this.models.watch(true);
    this.draw();
    this.save(conversation);
    await generation.run();
    if (node.error) this.models.failed(node.error);
    if (node.finish === "length" && this.models.isFull(node)) node.finish = "context";
    this.generations.delete(conversation.id);
    this.models.watch(this.generations.size > 0);
    conversation.updated = Date.now();
    this.save(conversation);
    this.draw();
    if (node.error?.status === 401) this.askKey(node.error.message);
    if (conversation !== this.current) say(`${titleOf(conversation)}: the answer is complete.`);
  }

  stop() {
    this.generations.get(this.current.id)?.stop();
  }

  // -- saving -------------------------------------------------------------------------------------

  /** Saves a conversation that changes often; several changes are saved together. */
  saveSoon(conversation) {
    const { id } = conversation;
    if (!this.conversations.has(id) || this.saving.has(id)) return;
    this.saving.set(id, setTimeout(() => this.save(conversation), SAVE_MS));
  }

  /** Saves a conversation, unless it is empty. */
  async save(conversation) {
    clearTimeout(this.saving.get(conversation.id));
    this.saving.delete(conversation.id);
    if (!this.conversations.has(conversation.id)) return;
    try {
      await this.store.put(conversation);
    } catch {
      toast("The conversation could not be stored: the browser's storage may be full.");
    }
  }

  saveAllNow() {
    for (const id of this.saving.keys()) this.save(this.conversations.get(id));
  }

  async changedElsewhere(id) {
    const conversation = await this.store.get(id);
    if (this.generations.has(id)) return; // what is being written here is newer
    if (conversation) this.conversations.set(id, conversation);
    else this.conversations.delete(id);
    if (this.current.id === id) {
      this.current = conversation ?? this.blank();
      this.thread.clear();
    }
    this.draw();
  }

  rename(conversation, title) {
    conversation.title = title;
    this.save(conversation);
    this.draw();
  }

  async remove(conversation) {
    const { id } = conversation;
    this.generations.get(id)?.stop();
    this.conversations.delete(id);
    if (this.current === conversation) this.show(this.blank());
    else this.draw();
    await this.store.remove(id);
    toast(`Deleted “${titleOf(conversation)}”.`, ["Undo", () => {
      this.conversations.set(id, conversation);
      this.save(conversation);
      this.show(conversation);
    }]);
  }

  async removeAll() {
    for (const generation of this.generations.values()) generation.stop();
    const ids = [...this.conversations.keys()];
    this.conversations.clear();
    this.open(this.blank());
    for (const id of ids) await this.store.remove(id);
    toast("All conversations were deleted.");
  }

  async importFile(file) {
    let found;
    try {
      found = importText(await file.text());
    } catch (error) {
      toast(error.message);
      return;
    }
    for (const conversation of found) {
      this.conversations.set(conversation.id, conversation);
      await this.save(conversation);
    }
    this.draw();
    toast(`Imported ${found.length} conversation${found.length === 1 ? "" : "s"}.`);
  }
}

/** Marks answers as ended that were running when the page was closed. */
function mendInterrupted(conversation) {
  for (const node of Object.values(conversation.nodes)) {
    if (node.role === "assistant" && !node.finish && !node.error) node.finish = "stopped";
  }
}

function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = `${fileName(name) || "conversation"}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
