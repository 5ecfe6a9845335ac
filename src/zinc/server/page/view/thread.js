// The messages of the shown branch. While an answer grows, its end stays in view until the user
// scrolls up.

import { versions } from "../tree.js";
import { MessageView } from "./message.js";

const NEAR_END = 48; // pixels

export class Thread {
  /**
   * @param {object} actions the actions of messages: regenerate(node), edit(node, text),
   *   choose(id, label of the button), proceed(node), answerCalls(node, results)
   */
  constructor(actions) {
    this.actions = actions;
    this.scroller = document.getElementById("thread");
    this.root = document.getElementById("messages");
    this.empty = document.getElementById("empty");
    this.toEnd = document.getElementById("to-end");
    this.views = [];
    this.isAtEnd = true;
    this.scroller.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.toEnd.addEventListener("click", () => this.scrollToEnd());
    new ResizeObserver(() => this.keepEnd()).observe(this.root);
  }

  /**
   * Shows a path of a conversation. `generation`: its running answer, if any.
   * Returns whether this removed the focused element.
   */
  show(conversation, path, generation) {
    const focused = this.root.contains(document.activeElement);
    this.empty.hidden = path.length > 0;
    path.forEach((node, i) => {
      if (this.views[i]?.node === node) return;
      for (const view of this.views.splice(i)) view.element.remove();
      const view = new MessageView(node, this.actions);
      this.root.append(view.element);
      this.views.push(view);
    });
    for (const view of this.views.splice(path.length)) view.element.remove();
    for (const view of this.views) this.update(view, conversation, generation);
    this.keepEnd();
    return focused && !this.root.contains(document.activeElement);
  }

  /** Draws only the growing message. */
  grow(conversation, generation) {
    const view = this.views.find(({ node }) => node === generation.node);
    if (view) this.update(view, conversation, generation);
    this.keepEnd();
  }

  update(view, conversation, generation) {
    view.update({
      generation: generation?.node === view.node ? generation : null,
      ids: versions(conversation, view.node),
      isLast: view === this.views.at(-1),
      isBusy: Boolean(generation),
    });
  }

  /** Removes the shown messages, when another conversation is opened. */
  clear() {
    for (const view of this.views.splice(0)) view.element.remove();
    this.isAtEnd = true;
  }

  /** Scrolls to a message, and focuses the button below it that has this label. */
  focusMessage(id, label) {
    const view = this.views.find(({ node }) => node.id === id);
    view?.element.scrollIntoView({ block: "nearest" });
    view?.focusButton(label);
  }

  /** Opens the last question for editing. */
  editLast() {
    this.views.findLast(({ node }) => node.role === "user")?.edit();
  }

  scrollToEnd() {
    this.isAtEnd = true;
    this.keepEnd();
  }

  keepEnd() {
    if (this.isAtEnd) this.scroller.scrollTop = this.scroller.scrollHeight;
    this.toEnd.hidden = this.isAtEnd;
  }

  scrolled() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    this.isAtEnd = scrollHeight - scrollTop - clientHeight < NEAR_END;
    this.toEnd.hidden = this.isAtEnd;
  }
}
