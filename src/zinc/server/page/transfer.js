// Export and import of conversations. An imported file is untrusted, so each conversation is rebuilt
// from the expected members only, and a broken tree is refused.

import { newConversation, newId } from "./tree.js";

const FORMAT = "zinc-conversations";
const VERSION = 1;
const MAX_NODES = 100_000;

/** Returns the text of a file with these conversations. */
export function exportText(conversations) {
  const exported = new Date().toISOString();
  return JSON.stringify({ format: FORMAT, version: VERSION, exported, conversations }, null, 1);
}

/**
 * Returns the conversations in a file, with new ids.
 * Throws Error with a message for the user.
 */
export function importText(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("The file is not JSON.");
  }
  if (file?.format !== FORMAT || !Array.isArray(file.conversations)) {
    throw new Error("The file contains no conversations of this page.");
  }
  if (file.version !== VERSION) {
    throw new Error("The file was written by another version of this page.");
  }
  return file.conversations.map((each, i) => readConversation(each, i + 1));
}

function readConversation(given, number) {
  const bad = () => new Error(`Conversation ${number} in the file is damaged.`);
  if (!isObject(given) || !isObject(given.nodes) || !isObject(given.top)) throw bad();
  const entries = Object.entries(given.nodes);
  if (entries.length > MAX_NODES || !entries.every(([, node]) => isNode(node))) throw bad();
  const ids = new Map(entries.map(([id]) => [id, newId()]));
  const idOf = (id) => {
    if (id === null) return null;
    if (!ids.has(id)) throw bad();
    return ids.get(id);
  };
  const family = ({ children, chosen }) => {
    if (!Array.isArray(children)) throw bad();
    return { children: children.map(idOf), chosen: idOf(chosen) };
  };
  const nodes = {};
  for (const [id, node] of entries) {
    const kept = { id: idOf(id), parent: idOf(node.parent ?? null), ...family(node) };
    nodes[kept.id] = { ...kept, ...readNode(node) };
  }
  const conversation = newConversation({
    title: string(given.title),
    created: finite(given.created) ?? Date.now(),
    updated: finite(given.updated) ?? Date.now(),
    model: typeof given.model === "string" ? given.model : null,
    system: string(given.system),
    settings: readSettings(given.settings),
    tools: string(given.tools),
    top: family(given.top),
    nodes,
  });
  if (!isTree(conversation)) throw bad();
  return conversation;
}

function isNode(node) {
  return isObject(node) && ["user", "assistant", "tool"].includes(node.role);
}

function readNode(node) {
  const kept = {
    role: node.role,
    created: finite(node.created) ?? Date.now(),
    content: string(node.content),
  };
  if (node.role === "tool") kept.results = records(node.results, ["id", "name", "content"]);
  if (node.role !== "assistant") return kept;
  return {
    ...kept,
    reasoning: string(node.reasoning),
    reasoningMs: finite(node.reasoningMs) ?? 0,
    calls: records(node.calls, ["id", "name", "arguments"]),
    model: typeof node.model === "string" ? node.model : null,
    finish: typeof node.finish === "string" ? node.finish : null,
    stats: readNumbers(node.stats),
  };
}

function records(value, names) {
  if (!Array.isArray(value)) return [];
  return value.filter(isObject).map((each) => {
    return Object.fromEntries(names.map((name) => [name, string(each[name])]));
  });
}

function readNumbers(value) {
  if (!isObject(value)) return null;
  return Object.fromEntries(Object.entries(value).filter(([, n]) => finite(n) !== null));
}

function readSettings(value) {
  if (!isObject(value)) return {};
  return Object.fromEntries(
    Object.entries(value).filter(([, each]) => ["string", "number"].includes(typeof each)),
  );
}

/** Returns whether every node is reachable from the top and is listed once, by its parent. */
function isTree({ top, nodes }) {
  let seen = 0;
  const waiting = [[null, top]];
  while (waiting.length) {
    const [id, { children, chosen }] = waiting.pop();
    if (children.length ? !children.includes(chosen) : chosen !== null) return false;
    for (const child of children) {
      if (nodes[child].parent !== id || (seen += 1) > MAX_NODES) return false;
      waiting.push([child, nodes[child]]);
    }
  }
  return seen === Object.keys(nodes).length;
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function string(value) {
  return typeof value === "string" ? value : "";
}

function finite(value) {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}
