// A conversation as a tree of messages: who edits a question or asks for another answer begins a
// branch, and nothing that was said is lost. Plain data, so that it can be stored and exported.
//
//   conversation {id, title, created, updated, model, system, settings, tools, top, nodes}
//   node {id, parent, children, chosen, role, content, …}     `chosen`: the child that is shown
//
// A user's node has content; an assistant's also reasoning, calls, model, stats, finish and error;
// a tool's has `results`, one for each call of the message before it.

/** A name that nobody else has. `crypto.randomUUID` is missing on pages served without TLS. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function newConversation(fields = {}) {
  const now = Date.now();
  return {
    id: newId(),
    title: "",
    created: now,
    updated: now,
    model: null,
    system: "",
    settings: {},
    tools: "",
    top: { children: [], chosen: null },
    nodes: {},
    ...fields,
  };
}

/** Adds a message after `parentId` (null: as a first one) and shows it. */
export function addNode(conversation, parentId, fields) {
  const node = {
    id: newId(), parent: parentId, children: [], chosen: null, created: Date.now(), content: "",
    ...fields,
  };
  conversation.nodes[node.id] = node;
  const parent = holder(conversation, parentId);
  parent.children.push(node.id);
  parent.chosen = node.id;
  conversation.updated = node.created;
  return node;
}

/** What has the children of a node: the node, or the top of the tree. */
function holder(conversation, id) {
  return id === null ? conversation.top : conversation.nodes[id];
}

/** The messages that are shown, first to last. */
export function shownPath(conversation) {
  const path = [];
  let id = conversation.top.chosen;
  while (id !== null) {
    const node = conversation.nodes[id];
    path.push(node);
    id = node.chosen;
  }
  return path;
}

/** The messages up to and with a node. */
export function pathTo(conversation, id) {
  const path = [];
  for (let at = id; at !== null; at = conversation.nodes[at].parent) {
    path.push(conversation.nodes[at]);
  }
  return path.reverse();
}

/** Ids of the versions of a message, oldest first. */
export function versions(conversation, node) {
  return holder(conversation, node.parent).children;
}

/** Shows another version of a message, with what was last shown after it. */
export function choose(conversation, id) {
  holder(conversation, conversation.nodes[id].parent).chosen = id;
}

/** A conversation's name in lists. */
export function titleOf(conversation) {
  if (conversation.title) return conversation.title;
  const first = shownPath(conversation).find((node) => node.role === "user");
  const line = first?.content.trim().split("\n", 1)[0] ?? "";
  return line.length > 80 ? `${line.slice(0, 79)}…` : line || "New chat";
}

/** The texts of a conversation, all branches, for searching. */
export function* textsOf(conversation) {
  yield titleOf(conversation);
  for (const node of Object.values(conversation.nodes)) yield node.content;
}

/**
 * Messages for the chat API: the system prompt and `path`. Reasoning goes along, for templates that
 * show the model its own between calls; an answer that failed before its first word is left out.
 */
export function apiMessages(conversation, path) {
  const messages = [];
  if (conversation.system.trim()) messages.push({ role: "system", content: conversation.system });
  for (const node of path) {
    if (node.role === "tool") {
      for (const { id, name, content } of node.results) {
        messages.push({ role: "tool", tool_call_id: id, name, content });
      }
    } else if (node.role === "user") {
      messages.push({ role: "user", content: node.content });
    } else if (node.content || node.calls?.length) {
      messages.push(assistantMessage(node));
    }
  }
  return messages;
}

function assistantMessage(node) {
  const message = { role: "assistant", content: node.content };
  if (node.reasoning) message.reasoning_content = node.reasoning;
  if (node.calls?.length) {
    message.tool_calls = node.calls.map(({ id, name, arguments: given }) => ({
      id, type: "function", function: { name, arguments: given },
    }));
  }
  return message;
}
