// The store of conversations: IndexedDB of this browser, and nowhere else. Without IndexedDB, as in
// some private windows, conversations last as long as the page (`isLasting` is false).
// A BroadcastChannel tells other tabs about each change.

const DATABASE = "zinc";
const STORE = "conversations";

export class Store {
  /** Opens the store. */
  static async open() {
    const store = new Store();
    try {
      store.database = await openDatabase();
    } catch {
      store.database = null;
    }
    return store;
  }

  constructor() {
    this.database = null;
    this.channel = "BroadcastChannel" in window ? new BroadcastChannel(DATABASE) : null;
  }

  get isLasting() {
    return this.database !== null;
  }

  /** Calls `heard(id)` when another tab changes or removes a conversation. */
  onChange(heard) {
    this.channel?.addEventListener("message", ({ data }) => heard(data));
  }

  async all() {
    return this.database ? this.request("readonly", (store) => store.getAll()) : [];
  }

  /** Returns the conversation with this id, or undefined. */
  async get(id) {
    return this.database ? this.request("readonly", (store) => store.get(id)) : undefined;
  }

  async put(conversation) {
    if (!this.database) return;
    // Copy now: later changes belong to the next write.
    const copy = structuredClone(conversation);
    await this.request("readwrite", (store) => store.put(copy));
    this.channel?.postMessage(conversation.id);
  }

  async remove(id) {
    if (!this.database) return;
    await this.request("readwrite", (store) => store.delete(id));
    this.channel?.postMessage(id);
  }

  request(mode, act) {
    return new Promise((resolve, reject) => {
      const transaction = this.database.transaction(STORE, mode);
      const request = act(transaction.objectStore(STORE));
      transaction.oncomplete = () => resolve(request.result);
      transaction.onerror = transaction.onabort = () => reject(transaction.error);
    });
  }
}

function openDatabase() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(DATABASE, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
    request.onsuccess = () => {
      // Close, so that a newer page in another tab can upgrade the database.
      request.result.onversionchange = () => request.result.close();
      resolve(request.result);
    };
    request.onerror = () => reject(request.error);
    request.onblocked = () => reject(new Error("another tab holds the store"));
  });
}
