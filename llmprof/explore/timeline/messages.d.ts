// Written from the messages and traits of the widget by `make bundles`. Do not edit.
import type { Model as AnyModel } from "../base/js/model";

/** A color: the kind of name that it stands for (stage, category, phase, cause …), and the name. */
export type Key = {
  kind: string;
  name: string;
  colour: string;
};

/** A rank (the host's is -1), its device, its share of waiting on the device, and whether the others wait for it. */
export type Group = {
  rank: number;
  label: string;
  detail: string;
  waits: number | null;
  late: boolean;
};

/** A row: its kind and rank, levels of nested spans, number of spans or samples, and a note if it has none. */
export type Described = {
  kind: string;
  rank: number;
  label: string;
  levels: number;
  count: number;
  note: string;
  unit: string;
  range: [number, number] | null;
};

/** A kind of rows in a selected range, and its number of spans, samples or launches there. */
export type RowCount = {
  kind: string;
  count: number;
};

/** A name in a selected range: its color, spans, their time inside, mean, median and p99 of whole spans (ns). */
export type Named = {
  name: string;
  code: number;
  count: number;
  total_ns: number;
  mean_ns: number;
  p50_ns: number;
  p99_ns: number;
  share: number | null;
};

/** A counter in a selected range; its mean is over time. */
export type Counted = {
  name: string;
  unit: string;
  count: number;
  least: number | null;
  mean: number | null;
  most: number | null;
  first: number | null;
  last: number | null;
};

/** What calls launched, by name: times from the begin of the call to that of the kernel or copy (ns). */
export type Launched = {
  name: string;
  count: number;
  mean_ns: number;
  p50_ns: number;
  p99_ns: number;
  most_ns: number;
};

/** A span: its row, level and id there, start and end (ns), name and number of its color. */
export type Hit = {
  row: number;
  level: number;
  id: number;
  start: number;
  end: number;
  name: string;
  code: number;
};

/** One end of an arrow: row, level and time (ns). */
export type ArrowEnd = {
  row: number;
  level: number;
  time: number;
};

/** A hit of the search, with the rank and the label of its row. */
export type Listed = {
  hit: Hit;
  rank: number;
  label: string;
};

/** A table of the trace, and its columns. */
export type TraceTable = {
  name: string;
  columns: string[];
};

/** A column of the result of a query, and whether it has numbers. */
export type QueryColumn = {
  name: string;
  number: boolean;
};

export type Messages = {
  selection: {
    asks: Record<string, never>;
    answers: { file: string; content: string };
  };
  rows: {
    asks: Record<string, never>;
    answers: { whole: [number, number]; found: boolean; missing: string; keys: Key[]; present: Record<string, number[]>; groups: Group[]; rows: Described[]; names: string[]; version: number; trace: string; queries: string[] };
  };
  find: {
    asks: Record<string, never>;
    answers: { found: boolean };
  };
  follow: {
    asks: Record<string, never>;
    answers: { found: boolean };
  };
  /** Buffers: of events start and duration (f4, ns from the window's start), color (u1), name (u4), id (u4); of bins how busy (u1) and color (u1); of samples least and greatest (f4); of events the share that waits, of bins the same (u1, of 255). */
  view: {
    asks: { window: [number, number]; width: number; rows: number[]; color_by: "category" | "stage" };
    answers: { window: [number, number]; columns: number; lanes: [number, number, number, number, number][] };
  };
  /** Buffers: of events start and duration (f4, ns from the window's start), color (u1), name (u4), id (u4); of bins how busy (u1) and color (u1); of samples least and greatest (f4); of events the share that waits, of bins the same (u1, of 255). */
  overview: {
    asks: { width: number; color_by: "category" | "stage" };
    answers: { window: [number, number]; columns: number; lanes: [number, number, number, number, number][] };
  };
  span: {
    asks: { span: [number, number]; rows?: number[] | null; kind?: string | null; color_by?: "category" | "stage" | null };
    answers: { title: string; facts: [string, string][]; kinds: RowCount[]; kind: string; rows: Named[]; counters: Counted[]; flows: Launched[]; total: number };
  };
  names: {
    asks: { numbers: number[] };
    answers: { names: Record<string, string> };
  };
  describe: {
    asks: { row: number; id: number };
    answers: { hit: Hit; facts: [string, string][]; flows: [ArrowEnd, ArrowEnd][]; target?: Hit | null; kind: string; label: string };
  };
  hover: {
    asks: { row: number; id: number };
    answers: { hit: Hit; facts: [string, string][]; flows: [ArrowEnd, ArrowEnd][]; target?: Hit | null; kind: string; label: string };
  };
  pick: {
    asks: { row: number; level: number; time: number; reach: number };
    answers: { hit?: Hit | null };
  };
  neighbour: {
    asks: { row: number; level: number; id: number; by: number };
    answers: { hit?: Hit | null };
  };
  search: {
    asks: { text: string; after: number; index?: number | null };
    answers: { count: number; index: number; hit?: Hit | null; names: number[] };
  };
  list: {
    asks: { text: string; first: number; count: number; where: "device" | "everywhere" | "found" | "host"; rank?: number | null; window?: [number, number] | null; sort: string };
    answers: { total: number; names: number; sum_ns: number; ranks: number[]; rows: Listed[] };
  };
  flame: {
    asks: { by: "host" | "module" | "python" | "stage" };
    answers: { by: "host" | "module" | "python" | "stage"; kinds: ("host" | "module" | "python" | "stage")[]; of: string; problem: string; total: number; events: number; trunk: string[]; names: string[]; name: number[]; level: number[]; start: number[]; value: number[]; left_out: number };
  };
  speedscope: {
    asks: { by: "host" | "module" | "python" | "stage" };
    answers: { file: string; content: string };
  };
  /** Buffers: the file. */
  export: {
    asks: { window: [number, number] };
    answers: { file: string };
  };
  tables: {
    asks: Record<string, never>;
    answers: { tables: TraceTable[]; words: string[] };
  };
  query: {
    asks: { text: string };
    answers: { problem: string; line?: number | null; column?: number | null; python: string; columns: QueryColumn[]; total: number; rows: string[][]; places: boolean; spans: boolean };
  };
  queried: {
    asks: { first: number; count: number; sort: string };
    answers: { rows: string[][] };
  };
  csv: {
    asks: { sort: string };
    answers: { file: string; content: string };
  };
  place: {
    asks: { row: number; sort: string };
    answers: Record<string, never>;
  };
  track: {
    asks: Record<string, never>;
    answers: { row: number };
  };
  goto: {
    asks: { step?: number | null; layer?: number | null; rank?: number | null };
    answers: { window: [number, number] };
  };
};

export type Traits = {
  arrangement: Record<string, any> | null;
  busy: string;
  color_by: "stage" | "category";
  colours: Record<string, any>;
  height: number | null;
  kernel: string | null;
  layer: number | null;
  marks: Record<string, any>[];
  notes_problem: string;
  only: Record<string, any>;
  rank: number | null;
  search: string;
  selection: Record<string, any> | null;
  span: [number, number] | null;
  span_kind: string | null;
  span_rows: number[] | null;
  stage: string | null;
  step: number | null;
  theme: "auto" | "light" | "dark";
  window: [number, number] | null;
};

export type Model = AnyModel<Traits, Messages>;
