// The model of anywidget, with the traits and messages of a widget (its messages.d.ts).

export type AnyMessages = { [kind: string]: { asks: any; answers: any } };

export interface Model<T = any, M extends AnyMessages = any> {
  get<K extends keyof T & string>(name: K): T[K];
  set<K extends keyof T & string>(name: K, value: T[K]): void;
  save_changes(): void;
  send(content: object): void;
  on(events: string, listener: (...rest: any[]) => void): void;
  off?(events?: string, listener?: (...rest: any[]) => void): void;
  /** Only for types: the kinds of messages. */
  readonly messages?: M;
  /** JupyterLab and Notebook have it. */
  widget_manager?: any;
}

export type View<T, M extends AnyMessages> = { model: Model<T, M>; el: HTMLElement };
