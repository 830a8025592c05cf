// Written from the messages and traits of the widget by `make bundles`. Do not edit.
import type { Model as AnyModel } from "../base/js/model";

/** A part of the latency: its column, its description, and its color. */
export type LatencyPart = {
  name: string;
  words: string;
  colour: string;
};

/** A finding about a step. */
export type Reason = {
  severity: string;
  title: string;
};

export type Messages = {
  selection: {
    asks: Record<string, never>;
    answers: { file: string; content: string };
  };
  table: {
    asks: { sort: string; count: number };
    answers: { rows: Record<string, any>[]; total: number; longest: number; parts: LatencyPart[]; title: string };
  };
  rows: {
    asks: { sort: string; offset: number; count: number };
    answers: { rows: Record<string, any>[]; offset: number };
  };
  pick: {
    asks: { sort: string; row: number };
    answers: Record<string, never>;
  };
  details: {
    asks: { request: number };
    answers: { facts: [string, string][]; parts: [string, string][]; step?: number | null; reasons: Reason[] };
  };
};

export type Traits = {
  busy: string;
  colours: Record<string, any>;
  kernel: string | null;
  layer: number | null;
  only: Record<string, any>;
  picked: number | null;
  rank: number | null;
  sort: string;
  stage: string | null;
  step: number | null;
  theme: "auto" | "light" | "dark";
  window: [number, number] | null;
};

export type Model = AnyModel<Traits, Messages>;
