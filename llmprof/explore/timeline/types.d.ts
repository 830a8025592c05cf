// What the parts of the timeline share: rows, views, and what is drawn.
import type { Colours } from "../base/js/theme.mjs";
import type { Described, Group, Messages } from "./messages";

export type Window = [number, number];

/** Place of a level of a row in its item. */
export type Level = { row: number; level: number; y: number; height: number };

/** A row with its number. */
export type Row = Described & { number: number };

/** What the rows answer said. */
export type Rows = Messages["rows"]["answers"];

export type GroupItem = Group & {
  type: "group";
  closed: boolean;
  rows: number;
  top: number;
  height: number;
  levels: Level[];
};
export type RowItem = Omit<Row, "levels"> & {
  type: "row";
  folded: boolean;
  top: number;
  height: number;
  levels: Level[];
};
/** Head of a rank, or a row. */
export type Item = GroupItem | RowItem;

/** Events or bins of a level of a row. */
export type Lane = { row: number; level: number; first: number; count: number; bins: number };

/** Events and bins of the rows of a window. */
export type View = {
  window: Window;
  columns: number;
  lanes: Map<string, Lane>;
  binned: number;
  start: ArrayLike<number>;
  dur: ArrayLike<number>;
  code: ArrayLike<number>;
  name: ArrayLike<number> & Iterable<number>;
  id: ArrayLike<number>;
  busy: ArrayLike<number>;
  main: ArrayLike<number>;
  samples: ArrayLike<number>;
  /** Share of each event that waits for another rank (of 255). */
  waits: ArrayLike<number>;
  /** How much of each bin waits for another rank (of 255). */
  held: ArrayLike<number>;
  /** What was asked for. */
  asked?: { window: Window };
};

export type Paints = { colour: string[]; ink: string[]; packed: Uint32Array };

export type Bins = HTMLCanvasElement & { image?: ImageData | null };

/** What is drawn. */
export type Scene = {
  view: View | null;
  bins: HTMLCanvasElement;
  window: Window;
  whole: Window;
  width: number;
  theme: Colours;
  paints: Paints;
  names: Map<number, string>;
  dimmed: Set<number> | null;
  span: Window | null;
  spanRows: number[] | null;
  dragging: boolean;
  hatch: CanvasPattern | string;
};

export type Mark = { time: number; text: string };

export type Point = { x: number; y: number };

/** Rows that scroll together, and the names beside them. */
export type Pane = {
  el: HTMLElement;
  inner: HTMLElement;
  gutter: HTMLElement;
  canvas: HTMLCanvasElement;
  items: Item[];
  shown: Item[];
  height: number;
  content?: number;
};
