// A conversation as a tree of messages. Editing a question or asking for another answer starts a
// branch, so no message is lost. It is plain data, so that it can be stored and exported.
//
//   conversation {id, title, created, updated, model, system, settings, tools, top, nodes}
//   node {id, parent, children, chosen, role, content, …}     `chosen`: the child that is shown
//
// A user's node has content. An assistant's also has reasoning, calls, model, stats, finish and
// error. A tool's node has `results`, one for each call of the message before it.

/** Returns a unique id. `crypto.randomUUID` does not exist on pages served without TLS. */
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

/** Adds a message after `parentId` (null: as a first message) and shows it. */
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

/** Returns the object that holds the children of a node id: the node, or the top of the tree. */
function holder(conversation, id) {
  return id === null ? conversation.top : conversation.nodes[id];
}

/** Returns the shown messages, first to last. */
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

/** Returns the messages up to and including a node. */
export function pathTo(conversation, id) {
  const path = [];
  for (let at = id; at !== null; at = conversation.nodes[at].parent) {
    path.push(conversation.nodes[at]);
  }
  return path.reverse();
}

/** Returns the ids of the versions of a message, oldest first. */
export function versions(conversation, node) {
  return holder(conversation, node.parent).children;
}

/** Shows another version of a message, with the messages last shown after it. */
export function choose(conversation, id) {
  holder(conversation, conversation.nodes[id].parent).chosen = id;
}

/** Returns a conversation's name for lists. */
export function titleOf(conversation) {
  if (conversation.title) return conversation.title;
  const first = shownPath(conversation).find((node) => node.role === "user");
  const line = first?.content.trim().split("\n", 1)[0] ?? "";
  return line.length > 80 ? `${line.slice(0, 79)}…` : line || "New chat";
}

/** Returns all texts of a conversation, in all branches, for searching. */
export function* textsOf(conversation) {
  yield titleOf(conversation);
  for (const node of Object.values(conversation.nodes)) yield node.content;
}

/**
 * Returns messages for the chat API: the system prompt and `path`. They include reasoning, because
 * some templates show it to the model between calls. An empty failed answer is left out.
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
