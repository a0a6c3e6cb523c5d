/** Listeners by event; `Events` maps the name of an event to what it carries. */
export class Emitter<Events> {
  readonly #listeners = new Map<keyof Events, Set<(value: never) => void>>();

  /** Returns the function that ends the subscription. */
  on<E extends keyof Events>(event: E, listener: (value: Events[E]) => void): () => void {
    const listeners = this.#listeners.get(event) ?? new Set();
    this.#listeners.set(event, listeners.add(listener));
    return () => listeners.delete(listener);
  }

  /**
   * A listener that throws stops nobody else: its error goes where those that nobody
   * has caught go. Replications and feeds end when it goes through them.
   */
  emit<E extends keyof Events>(event: E, value: Events[E]): void {
    for (const listener of this.#listeners.get(event) ?? []) {
      try {
        (listener as (value: Events[E]) => void)(value);
      } catch (error) {
        queueMicrotask(() => {
          throw error;
        });
      }
    }
  }
}
