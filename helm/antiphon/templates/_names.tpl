{{- define "antiphon.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/*
Prefix of all names, at most 40 characters so that "-<role>" fits in a DNS label.
A longer one is cut and told apart by a hash.
*/}}
{{- define "antiphon.fullname" -}}
{{- $full := .Values.fullnameOverride -}}
{{- if not $full -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full = ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- end -}}
{{- $full = $full | replace "." "-" -}}
{{- if gt (len $full) 40 -}}
{{- $full = printf "%s-%s" ($full | trunc 31 | trimSuffix "-") ($full | sha256sum | trunc 8) -}}
{{- end -}}
{{- $full -}}
{{- end -}}

{{/* Name of a component's objects. Arguments: root, component. */}}
{{- define "antiphon.componentName" -}}
{{- printf "%s-%s" (include "antiphon.fullname" .root) (.component | replace "_" "-") -}}
{{- end -}}

{{/* Never changes during a release's life. Arguments: root, component. */}}
{{- define "antiphon.selectorLabels" -}}
app.kubernetes.io/name: {{ include "antiphon.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component | replace "_" "-" }}
{{- end -}}

{{/*
Of pods. Without versions: a change of a pod's labels replaces it, and a new release of the chart
alone is no reason to load all weights again. Arguments: root, component.
*/}}
{{- define "antiphon.podLabels" -}}
{{ include "antiphon.selectorLabels" . }}
app.kubernetes.io/part-of: antiphon
{{- end -}}

{{/* Of a Deployment's pods: with those of its values. Arguments: root, component, settings. */}}
{{- define "antiphon.templateLabels" -}}
{{ include "antiphon.podLabels" . }}
{{- with .settings.podLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/*
The account of a component's pods; empty: the namespace's default. Arguments: root, component, settings.
*/}}
{{- define "antiphon.serviceAccountName" -}}
{{- $account := .settings.serviceAccount -}}
{{- if $account.name -}}{{ $account.name }}
{{- else if include "antiphon.makesServiceAccount" . -}}{{ include "antiphon.componentName" . }}
{{- end -}}
{{- end -}}

{{/*
Not empty where the chart makes the account. A gateway that reads no EndpointSlices needs one only for
its name or annotations. Arguments: root, component, settings.
*/}}
{{- define "antiphon.makesServiceAccount" -}}
{{- $account := .settings.serviceAccount -}}
{{- $needed := or (ne .component "gateway") (eq .root.Values.discovery "kubernetes") $account.name $account.annotations -}}
{{- if and $account.create $needed }}yes{{ end -}}
{{- end -}}

{{/* The address families of a Service. */}}
{{- define "antiphon.ipFamilies" -}}
{{- with .Values.ipFamilyPolicy }}
ipFamilyPolicy: {{ . }}
{{- end }}
{{- with .Values.ipFamilies }}
ipFamilies:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Of every other object. Arguments: root, component, labels (those of its own values, which win). */}}
{{- define "antiphon.labels" -}}
{{ include "antiphon.podLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with mergeOverwrite (dict) .root.Values.commonLabels (default dict .labels) }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/*
A repository with a slash is whole; another lies in `images.registry`. The tag is `images.tag`, or the
chart's appVersion, with the variant behind it.
Arguments: root, image, variant (empty: there is one image for all).
*/}}
{{- define "antiphon.image" -}}
{{- $image := .image -}}
{{- $repository := $image.repository -}}
{{- if and .root.Values.images.registry (not (contains "/" $repository)) -}}
{{- $repository = printf "%s/%s" (trimSuffix "/" .root.Values.images.registry) $repository -}}
{{- end -}}
{{- $tag := $image.tag -}}
{{- if not $tag -}}
{{- $tag = default .root.Chart.AppVersion .root.Values.images.tag -}}
{{- with .variant }}{{ $tag = printf "%s-%s" $tag . }}{{ end -}}
{{- end -}}
{{- printf "%s:%s" $repository $tag -}}
{{- with $image.digest }}@{{ . }}{{ end -}}
{{- end -}}

{{/* Where images are pulled from, or not. Arguments: root, image. */}}
{{- define "antiphon.pullPolicy" -}}
{{- default .root.Values.images.pullPolicy .image.pullPolicy -}}
{{- end -}}
