// Where conversations are kept: IndexedDB of this browser, and nowhere else. Without it (a private
// window may have none) they live as long as the page, and `isLasting` says so.
// Other tabs hear of each change over a BroadcastChannel.

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

  /** Calls `heard(id)` when another tab has changed or removed a conversation. */
  onChange(heard) {
    this.channel?.addEventListener("message", ({ data }) => heard(data));
  }

  async all() {
    return this.database ? this.request("readonly", (store) => store.getAll()) : [];
  }

  /** The conversation of that id, or undefined. */
  async get(id) {
    return this.database ? this.request("readonly", (store) => store.get(id)) : undefined;
  }

  async put(conversation) {
    if (!this.database) return;
    // A copy now: what comes in while the write waits belongs to the next one.
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
      // Another tab with a newer page must be able to change the layout.
      request.result.onversionchange = () => request.result.close();
      resolve(request.result);
    };
    request.onerror = () => reject(request.error);
    request.onblocked = () => reject(new Error("another tab holds the store"));
  });
}
